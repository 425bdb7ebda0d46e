from drfd.launcher.slurm_root.main import main

if __name__ == "__main__":
    main()
